# Imbrex in an image: the program, the library with its headers, and the Python package.
#   docker build -t imbrex .                                                                        CPU only
#   docker build -t imbrex --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 .                  with the CUDA parts
# tests/package/dockerfile_test.py runs these lines in a bare Debian 12.
ARG BASE=debian:12
FROM ${BASE}
WORKDIR /imbrex
COPY . .
RUN scripts/build
RUN cmake --install build --prefix /usr/local && ldconfig
RUN python3 -m venv /opt/imbrex && /opt/imbrex/bin/pip install --no-cache-dir .
ENV PATH=/opt/imbrex/bin:$PATH
RUN imbrex run gemm_reduce_scatter --m 512 --n 512 --k 2048 --device cpu --verify
RUN python -c "import imbrex; imbrex.doctor()"
CMD ["imbrex", "doctor"]
