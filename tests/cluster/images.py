"""Builds the images: pause, the Debian base, and the project's operator and sidecar.

    localhost/understudy-pause:1             a static program; the sandbox of every pod
    localhost/understudy-base:<hash>         Debian bookworm with python3, for tests' pods and as BASE
    localhost/understudy-operator:<hash>     the Dockerfile's target `operator`, of this checkout or another one
    localhost/understudy-sidecar:<hash>      its target `sidecar`

A hash covers all inputs, so a build is identified by its name, and a change gives another
image: a pod can never run an old one by mistake. `:dev` names the newest. A build takes
the machine's certificates and pip's settings from the environment, because it may run
behind a proxy, and leaves none of them in the image.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import tarfile
import tempfile
from pathlib import Path

from .commands import Progress, follow, run
from .dockerfile import Dockerfile
from .failures import ImageFailed
from .host_tools import IMAGE_TOOLS, ensure_tools, overlay_works, tool
from .node_config import PAUSE_IMAGE
from .oci_archive import ImageArchive, write_archive
from .paths import CHECKOUT, Paths

SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
LEFT_OUT = [
    "./dev/*", "./proc/*", "./sys/*", "./var/cache/apt/*", "./var/lib/apt/lists/*",
    "./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*",
]  # fmt: skip
# Files keep their times: Python compiles a module at each start if its bytecode names another time of the source.
TAR_ORDER = ["--numeric-owner", "--sort=name"]
BASE_HASH = hashlib.sha256("\n".join([SUITE, PACKAGES, *LEFT_OUT, *TAR_ORDER]).encode()).hexdigest()[:12]
BASE_REFERENCE = f"localhost/understudy-base:{BASE_HASH}"
TARGETS = ("operator", "sidecar")
CERTIFICATE_FOLDERS = ("/etc/ssl/certs", "/usr/local/share/ca-certificates", "/usr/share/ca-certificates", "/etc/pki")
CERTIFICATE_SETTINGS = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT")
PATH_IN_IMAGE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUILD_LIMIT_S = 900


def ensure_pause(paths: Paths) -> ImageArchive:
    """The pause image's archive, written unless it exists."""
    program = paths.binaries / "pause"
    archive = paths.images / f"pause-{hashlib.sha256(program.read_bytes()).hexdigest()[:12]}.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory() as folder:
            layer = Path(folder) / "layer.tar"
            with tarfile.open(layer, "w") as content:
                content.add(program, "pause")
            write_archive(archive, PAUSE_IMAGE, layer, ["/pause"], {})
    return ImageArchive.read(archive)


def ensure_base(paths: Paths, progress: Progress) -> ImageArchive:
    """The base image's archive; the first time, half a minute of debootstrap."""
    archive = paths.base_image / f"{BASE_HASH}.tar"
    if not archive.exists():
        ensure_tools(IMAGE_TOOLS, progress)
        progress.report("building the base image with debootstrap: about 40 s")
        paths.base_image.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=paths.base_image) as folder:
            _debootstrap(paths, Path(folder) / "root", progress)
            layer = Path(folder) / "layer.tar"
            exclude = [f"--exclude={pattern}" for pattern in LEFT_OUT]
            run(["tar", *TAR_ORDER, *exclude, "-C", Path(folder) / "root", "-cf", layer, "."], timeout_s=120)
            write_archive(archive, BASE_REFERENCE, layer, ["/bin/bash"], {"PATH": PATH_IN_IMAGE})
    return ImageArchive.read(archive)


def _debootstrap(paths: Paths, root: Path, progress: Progress) -> None:
    follow(
        [tool("debootstrap"), "--variant=minbase", f"--include={PACKAGES}", SUITE, root],
        timeout_s=BUILD_LIMIT_S,
        log=paths.base_image / "debootstrap.log",
        heartbeat=lambda: progress.report("  … still at debootstrap"),
    )


def ensure_project_image(paths: Paths, target: str, progress: Progress, checkout: Path = CHECKOUT) -> ImageArchive:
    """The archive of the operator or the sidecar of a checkout, built unless it exists.

    Raises ImageFailed without a Dockerfile, CommandFailed when the build fails.
    """
    reference = project_reference(target, checkout)
    archive = _archive_of(paths, reference)
    if not archive.exists():
        ensure_tools(IMAGE_TOOLS, progress)
        base = ensure_base(paths, progress)
        progress.report(f"building {reference}")
        paths.images.mkdir(parents=True, exist_ok=True)
        _pull_base(paths, base)
        _build(paths, target, reference, base, progress, checkout)
        unfinished = archive.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        push = [*_buildah(paths), "push", reference, f"oci-archive:{unfinished}:{reference}"]
        run(push, timeout_s=300)
        unfinished.rename(archive)
        _remove_older(paths, target, reference)
    return ImageArchive.read(archive)


def are_built(paths: Paths) -> bool:
    """Whether the archives of the base and of this checkout's operator and sidecar exist."""
    archives = [_archive_of(paths, project_reference(target)) for target in TARGETS]
    return all(archive.exists() for archive in (paths.base_image / f"{BASE_HASH}.tar", *archives))


def project_reference(target: str, checkout: Path = CHECKOUT) -> str:
    """The reference of the operator or the sidecar of a checkout, built or not."""
    if target not in TARGETS:
        raise ImageFailed(f"the project has no image {target!r}; it has {', '.join(TARGETS)}")
    return f"localhost/understudy-{target}:{_context_hash(checkout, target)}"


def archive_of_buildah(paths: Paths, name: str) -> ImageArchive:
    """Export an image from buildah's storage, the cluster's or root's."""
    archive = paths.images / (re.sub(r"[^A-Za-z0-9.-]+", "-", name) + ".tar")
    reference = name if "/" in name else f"localhost/{name}"
    paths.images.mkdir(parents=True, exist_ok=True)
    for buildah in (_buildah(paths), [tool("buildah")]):
        if run([*buildah, "images", "--quiet", name], check=False).strip():
            archive.unlink(missing_ok=True)
            run([*buildah, "push", name, f"oci-archive:{archive}:{reference}"], timeout_s=300)
            return ImageArchive.read(archive)
    raise ImageFailed(f"{name} is neither an OCI archive nor an image that buildah has; build it first")


def _buildah(paths: Paths) -> list[str]:
    driver = "overlay" if overlay_works(paths.cache) else "vfs"
    storage = paths.buildah / driver
    return [
        tool("buildah"), f"--root={storage / 'storage'}", f"--runroot={storage / 'run'}", f"--storage-driver={driver}",
    ]  # fmt: skip


def _pull_base(paths: Paths, base: ImageArchive) -> None:
    if not run([*_buildah(paths), "images", "--quiet", base.reference], check=False).strip():
        run([*_buildah(paths), "pull", f"oci-archive:{base.file}"], timeout_s=300)


def _build(paths: Paths, target: str, reference: str, base: ImageArchive, progress: Progress, checkout: Path) -> None:
    dockerfile = checkout / "Dockerfile"
    by_digest = f"{base.reference.rpartition(':')[0]}@{base.digest}"
    settings = [f"BASE={by_digest}", *_environment_for(dockerfile.read_text())]
    follow(
        [
            *_buildah(paths), "bud", "--isolation=chroot", "--network=host", "--layers", "--pull-never",
            f"--target={target}", f"--tag={reference}", *_certificate_mounts(),
            *(f"--build-arg={setting}" for setting in settings), f"--file={dockerfile}", checkout,
        ],
        timeout_s=BUILD_LIMIT_S,
        log=paths.images / f"build-{target}.log",
        heartbeat=lambda: progress.report(f"  … still building {target}"),
    )  # fmt: skip


def _certificate_mounts() -> list[str]:
    """The host's certificate authorities, read-only, at the same paths."""
    folders = {folder for folder in CERTIFICATE_FOLDERS if Path(folder).is_dir()}
    folders |= {str(Path(os.environ[name]).parent) for name in CERTIFICATE_SETTINGS if os.environ.get(name)}
    return [f"--volume={folder}:{folder}:ro" for folder in sorted(folders) if Path(folder).is_dir()]


def _environment_for(dockerfile: str) -> list[str]:
    """The environment's settings for which the Dockerfile has an ARG."""
    declared = Dockerfile.parse(dockerfile).arguments()
    wanted = [name for name in (*CERTIFICATE_SETTINGS, *PIP_SETTINGS) if name in declared and os.environ.get(name)]
    return [f"{name}={os.environ[name]}" for name in wanted]


def _archive_of(paths: Paths, reference: str) -> Path:
    return paths.images / (reference.rpartition("/")[2].replace(":", "-") + ".tar")


def _remove_older(paths: Paths, target: str, newest: str) -> None:
    """Keep three archives of a target, for other checkouts, and in buildah's storage only the newest image."""
    builds = sorted(paths.images.glob(f"understudy-{target}-*.tar"), key=lambda file: file.stat().st_mtime)
    for old in builds[:-3]:
        old.unlink()
    repository = newest.rpartition(":")[0]
    listed = run([*_buildah(paths), "images", "--format={{.Name}}:{{.Tag}}", f"--filter=reference={repository}"])
    for reference in listed.split():
        if reference != newest:
            run([*_buildah(paths), "rmi", reference], check=False, timeout_s=120)


def _context_hash(checkout: Path, target: str) -> str:
    """A hash of the base, the target's instructions, and every file that they copy from the checkout."""
    file = checkout / "Dockerfile"
    if not file.exists():
        raise ImageFailed(f"there is no {file}, of which the project's images are built")
    dockerfile = Dockerfile.parse(file.read_text())
    if target not in dockerfile.stages:
        raise ImageFailed(f"{file} has no target {target!r}; it has {', '.join(dockerfile.stages)}")
    digest = hashlib.sha256((BASE_HASH + dockerfile.text_of(target)).encode())
    for source in dockerfile.sources_of(target):
        for copied in _files(checkout, source):
            digest.update(f"{copied.relative_to(checkout)}\0".encode())
            digest.update(copied.read_bytes())
    return digest.hexdigest()[:12]


def _files(checkout: Path, source: str) -> list[Path]:
    found: list[Path] = []
    for start in sorted(checkout.glob(source.removeprefix("./").rstrip("/") or "*")):
        found += [start] if start.is_file() else [file for file in start.rglob("*") if file.is_file()]
    return sorted(file for file in found if not fnmatch.fnmatch(str(file), "*/__pycache__/*"))
