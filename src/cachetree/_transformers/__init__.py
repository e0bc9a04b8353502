"""What is in a cache and how it is rebuilt. The only folder that touches the internals of transformers' caches.

A module ``below_X_Y`` holds what transformers X.Y made unnecessary, as methods that override the next newer
adapter's. Older modules import newer ones, never the reverse: the oldest can always be deleted.
"""
