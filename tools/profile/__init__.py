"""Time of a step by kind of work, with advice.
Imports what a script imports, analysis and what is below; no forecast. Prints nothing."""
