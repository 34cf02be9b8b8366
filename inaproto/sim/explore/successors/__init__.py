"""The explored hand-over of a job from a host daemon to its successor (docs/protocol.md 13.8)."""
