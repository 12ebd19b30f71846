// An authorization server (node-oidc-provider) with two clients, which get tokens for one resource.
// provider.mjs PORT RESOURCE JWK: prints a line for each token.
import { Provider } from "oidc-provider";

const [port, resource, jwk] = process.argv.slice(2);
const client = {
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
};
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    { ...client, client_id: "by-secret", client_secret: "only-the-gateway-knows-it" },
    {
      ...client,
      client_id: "by-key",
      token_endpoint_auth_method: "private_key_jwt",
      token_endpoint_auth_signing_alg: "ES256",
      jwks: { keys: [JSON.parse(jwk)] },
    },
  ],
  scopes: ["mcp:read", "mcp:write"],
  ttl: { ClientCredentials: 3 },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_ctx, asked) => {
        if (asked !== resource) throw new Error(`unknown resource ${asked}`);
        return {
          scope: "mcp:read mcp:write",
          audience: resource,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        };
      },
    },
  },
});
provider.on("client_credentials.issued", (token) => console.log(`token ${token.clientId} ${token.scope}`));
provider.on("server_error", (_ctx, error) => console.log(`error ${error.stack}`));
provider.on("grant.error", (_ctx, error) => console.log(`refused ${error.message} ${error.error_detail ?? error.error_description}`));
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
