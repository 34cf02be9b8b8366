"""The switch daemon: ports, trunks, accelerator and control plane."""
