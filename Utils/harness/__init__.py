"""A measured run: settings, progress, watching a step, quality, record, ranks.

Imports Utils.base, Utils.device, Utils.corpus and Utils.model; nothing that starts or reads runs.
"""
