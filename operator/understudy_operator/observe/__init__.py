"""What is there: a store of raw objects fed by watches and periodic lists, and the links to coordinators."""
