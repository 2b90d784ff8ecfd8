"""The installed package: its command `stepladder`, which needs no clone and no make.

May import Utils, and runs other tools as programs; nothing imports it.
"""
