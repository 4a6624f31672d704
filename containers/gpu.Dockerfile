# The course with a GPU.  The grader runs as root, so that submissions run as nobody.
#   docker build -t flash-gpu -f containers/gpu.Dockerfile .
#   docker run --rm --gpus all -v "$PWD:/work:ro" flash-gpu python autograder.py --p3 --submission /work
# Wants the NVIDIA driver and its container toolkit on the host; CUDA itself comes with torch.
# Tried on 2026-11-24, outside of a container: --p3 --no-benchmark as root on an H200 (torch 2.11, Triton 3.6), with the worker as
# nobody, and on a CPU the RUN line of pip (Debian 12, Python 3.11).
# Not tried: docker build, the container toolkit.
FROM python:3.13-slim
# Triton compiles a launcher in C before the first launch.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /course
WORKDIR /course
RUN python -m pip install --no-cache-dir -c constraints.txt ".[course]"
CMD ["python", "autograder.py"]
