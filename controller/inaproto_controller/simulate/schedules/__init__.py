"""All-reduces among hosts, one idea per file, each as a ``Schedule``."""
