"""The place of a process in a library of whole all-reduces, from the first try to its release."""
