"""What would run here, what would fit, and where time went: values for doctor, forecast, profile.

Imports what a script imports and the layers below; prints nothing, and no launch, draw or commands.
"""
