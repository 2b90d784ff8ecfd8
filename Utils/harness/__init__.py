"""A measured run: settings, progress, clock of the steps, quality, record, ranks.

Imports base, scripts, results, device, corpus and model; nothing that starts or reads runs.
"""
