# syntax=docker/dockerfile:1
# One static binary in an otherwise empty image: it holds the CA certificates, the time zones and a user without rights.
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
ENV GOCACHE=/cache/build GOMODCACHE=/cache/mod CGO_ENABLED=0
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/cache go mod download
COPY . .
ARG TARGETOS TARGETARCH
# timetzdata: calendar periods follow the policy's time zone, and the image has no zoneinfo files.
RUN --mount=type=cache,target=/cache \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -tags timetzdata -ldflags "-s -w" -o /image/tollgate . && \
    mkdir -p /data /image/etc/ssl/certs && \
    cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ && \
    echo "tollgate:x:65532:65532::/data:/tollgate" >/image/etc/passwd && \
    echo "tollgate:x:65532:" >/image/etc/group

FROM scratch
COPY --from=build /image /
COPY --from=build --chown=65532:65532 /data /data
USER 65532:65532
# The gateway's outbox lives here: mount a volume, one for each gateway.
WORKDIR /data
EXPOSE 8080 8081
# Asks the service's own /readyz: healthy means ready to serve.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 CMD ["/tollgate", "health"]
ENTRYPOINT ["/tollgate"]
