"""Values for doctor, forecast and profile: what runs here, what fits, where time goes.

Imports what a script imports and the layers below; prints nothing, and no launch, draw or commands.
"""
