"""`make release` and `make scan`: the files of a release with their checksums, SBOMs and provenance; known
vulnerabilities.
"""
