"""The deterministic world of trees that move under jobs: controller, root, switches with slots."""
