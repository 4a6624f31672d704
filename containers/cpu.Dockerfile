# The course without a GPU, on any machine that runs Linux containers; kernels run in Triton's interpreter.
#   docker build -t flash -f containers/cpu.Dockerfile .
#   docker run --rm -it -v "$PWD:/work" -w /work flash python autograder.py --watch    # in an assignment
# Tried on 2026-11-28, outside of a container: the RUN line of pip in a fresh environment, without its index, then
# --doctor and --p3 (Debian 12, Python 3.11).
# Not tried: docker build, and any machine but x86-64.
FROM python:3.13-slim
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
COPY . /course
WORKDIR /course
RUN python -m pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt ".[course]"
CMD ["python", "autograder.py"]
