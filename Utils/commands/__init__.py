"""One file a target of the Makefile, which calls and prints; __main__ parses for all of them.
Imports every layer; nothing imports it."""
