"""How long collectives take on a network of latency and bandwidth: any ``Schedule``, in virtual time."""
