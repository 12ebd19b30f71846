# The MCP project's own server with a bit of everything, over Streamable HTTP (legacy era): a server for the stack that
# is no child of a gateway. Behind a proxy with certificates of its own: --build-context ca=DIR, as for the gateway.

FROM scratch AS ca

FROM debian:trixie-slim AS npm
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates npm
RUN --mount=type=bind,from=ca,target=/usr/local/share/ca-certificates/build \
    update-ca-certificates && npm install --prefix /srv --no-fund --no-audit --cafile /etc/ssl/certs/ca-certificates.crt \
    @modelcontextprotocol/server-everything@2026.8.31

FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends nodejs tini \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/*
COPY --from=npm /srv/node_modules /srv/node_modules
ENV PORT=3001 NODE_ENV=production
EXPOSE 3001
USER 10001:10001
ENTRYPOINT ["tini", "--", "node", "/srv/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]
CMD ["streamableHttp"]
