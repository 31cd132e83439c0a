"""The extensions: what few people use at once, each in a folder with its commands and all it needs.

The core imports none of them, and none imports another one. Each is added by entry points (`dpfc_cli.points`), as the
packages of others are, and can be deleted.
"""
