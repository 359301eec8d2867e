# The pods of tfrl-launch --engine=kubernetes; docs/cloud.md.
#   docker build -t REGISTRY/tfrl .
#   docker build -t REGISTRY/tfrl-gpu --build-arg TENSORFLOW='tensorflow[and-cuda]' .
#   docker build -t REGISTRY/tfrl --build-arg EXTRAS=atari,envpool .
ARG PYTHON=3.11
FROM python:${PYTHON}-slim
ARG TENSORFLOW=tensorflow
ARG EXTRAS=
ARG LIBTPU=
WORKDIR /src
COPY . .
# Another build of TensorFlow 2.15 may be asked for.
RUN sed -i "/^tensorflow==/d" constraints.txt && \
    pip install --no-cache-dir -c constraints.txt ".[reverb,tf-agents${EXTRAS:+,$EXTRAS}]" \
      "$TENSORFLOW"
RUN [ -z "$LIBTPU" ] || python -c "from urllib.request import urlretrieve as get; \
    get('$LIBTPU', '/lib/libtpu.so')"
# gin files and modules of an experiment: FROM this image, COPY them here.
WORKDIR /work
