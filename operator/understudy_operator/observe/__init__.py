"""The current state: a store of raw objects filled by watches and periodic lists, and the links to coordinators."""
