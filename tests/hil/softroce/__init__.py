"""Two hosts and a wire that does harm, and what crosses a switch's ports: for tests of Soft-RoCE hosts."""
