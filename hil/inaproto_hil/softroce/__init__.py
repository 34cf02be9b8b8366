"""Soft-RoCE bench: RoCE hosts of a real kernel in one small guest, and the switch daemon as their wire."""
