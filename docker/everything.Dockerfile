# The MCP project's demonstration server over Streamable HTTP (legacy era). The compose stack has
# it as a server that is not a gateway's child process.
# Behind a proxy with its own certificates, pass --build-context ca=DIR, as in Dockerfile.

FROM scratch AS ca

FROM debian:trixie-slim AS npm
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates npm
RUN --mount=type=bind,from=ca,target=/usr/local/share/ca-certificates/build \
    update-ca-certificates \
 && npm install --prefix /srv --no-fund --no-audit --cafile /etc/ssl/certs/ca-certificates.crt \
    @modelcontextprotocol/server-everything@2026.8.31

FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends nodejs tini \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/*
COPY --from=npm /srv/node_modules /srv/node_modules
ENV PORT=3001 NODE_ENV=production
EXPOSE 3001
USER 10001:10001
ENTRYPOINT ["tini", "--", "node", \
    "/srv/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]
CMD ["streamableHttp"]
