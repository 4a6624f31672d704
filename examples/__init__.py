"""The kernels of the course where people use them."""
