# The two images of Understudy.
#
#   docker build --target operator -t understudy-operator .
#   docker build --target sidecar  -t understudy-sidecar .
#
# BASE needs python3 (3.11 or newer) with venv, and CA certificates with openssl (which makes the webhook's own ones). It is named by its
# digest: update tag and digest together. The local cluster and `make release` build on a Debian of their own, by its digest, too.
#
# The dependencies are a layer of their own: nodes that have it pull a new version's code alone.
ARG BASE=docker.io/library/python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS operator-dependencies
COPY requirements/pip.lock requirements/operator.lock /build/
RUN python3 -m venv /opt/understudy \
 && /opt/understudy/bin/python -m pip install --no-cache-dir --only-binary=:all: --require-hashes -r /build/pip.lock \
 && /opt/understudy/bin/python -m pip install --no-cache-dir --only-binary=:all: --require-hashes -r /build/operator.lock \
 && /opt/understudy/bin/python -m pip uninstall -q -y pip setuptools

FROM operator-dependencies AS operator-build
COPY sidecar/understudy_protocol /opt/understudy/app/understudy_protocol
COPY operator/understudy_operator /opt/understudy/app/understudy_operator
COPY operator/understudy_webhook /opt/understudy/app/understudy_webhook
COPY sidecar/understudy_cli /opt/understudy/app/understudy_cli
RUN /opt/understudy/bin/python -m compileall -q /opt/understudy/app

FROM ${BASE} AS operator
COPY --from=operator-dependencies /opt/understudy /opt/understudy
COPY --from=operator-build /opt/understudy/app /opt/understudy/app
ENV PYTHONPATH=/opt/understudy/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["/opt/understudy/bin/python", "-m", "understudy_operator"]

FROM ${BASE} AS sidecar-dependencies
COPY requirements/pip.lock requirements/sidecar.lock /build/
RUN python3 -m venv /opt/understudy \
 && /opt/understudy/bin/python -m pip install --no-cache-dir --only-binary=:all: --require-hashes -r /build/pip.lock \
 && /opt/understudy/bin/python -m pip install --no-cache-dir --only-binary=:all: --require-hashes -r /build/sidecar.lock \
 && /opt/understudy/bin/python -m pip uninstall -q -y pip setuptools

FROM sidecar-dependencies AS sidecar-build
COPY sidecar/understudy_protocol /opt/understudy/app/understudy_protocol
COPY sidecar/understudy_sidecar /opt/understudy/app/understudy_sidecar
COPY sidecar/understudy_rollout /opt/understudy/app/understudy_rollout
COPY sidecar/understudy_protocol /build/sidecar/understudy_protocol
COPY sidecar/understudy_launcher /build/sidecar/understudy_launcher
COPY sidecar/understudy_jax /build/sidecar/understudy_jax
COPY sidecar/understudy_rollout /build/sidecar/understudy_rollout
COPY sidecar/understudy_torch /build/sidecar/understudy_torch
COPY sidecar/understudy_torchrun /build/sidecar/understudy_torchrun
COPY sidecar/understudy_zygote /build/sidecar/understudy_zygote
# What the sidecar puts into the trainer container: the launcher, its stub, and what workers may import.
RUN cd /build/sidecar \
 && /opt/understudy/bin/python -m understudy_launcher.package /opt/understudy/share \
 && /opt/understudy/bin/python -m compileall -q /opt/understudy/app

FROM ${BASE} AS sidecar
COPY --from=sidecar-dependencies /opt/understudy /opt/understudy
COPY --from=sidecar-build /opt/understudy/app /opt/understudy/app
COPY --from=sidecar-build /opt/understudy/share /opt/understudy/share
ENV PYTHONPATH=/opt/understudy/app PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["/opt/understudy/bin/python", "-m", "understudy_sidecar"]
