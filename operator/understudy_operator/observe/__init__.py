"""The current state: a store of raw objects, filled by watches and lists; and reads of objects without a watch."""
