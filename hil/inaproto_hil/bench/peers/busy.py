"""A process that does nothing but use a processor, until it is ended."""

if __name__ == "__main__":
    while True:
        pass
