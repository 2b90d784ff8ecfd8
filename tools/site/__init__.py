"""The static page on which a reader chooses a GPU: its figures, its charts, its files.
Imports draw and what is below it, and nothing that runs, launches or forecasts."""
