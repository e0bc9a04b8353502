"""How a class is registered with torch. The only folder that touches the internals of torch's pytree registries.

A module ``below_X_Y`` holds what torch X.Y made unnecessary, as methods that override the next newer adapter's. Older
modules import newer ones, never the reverse: the oldest can always be deleted.
"""
