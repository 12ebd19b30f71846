// An authorization server (node-oidc-provider). Two clients get tokens of their own; people sign in
// to it under any name (its development pages), and clients register themselves.
// provider.mjs PORT RESOURCE JWK FILE: prints a line for each token, and writes its value to FILE.
import { appendFileSync } from "node:fs";
import { Provider } from "oidc-provider";

const [port, resource, jwk, given] = process.argv.slice(2);
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
  clientAuthMethods: ["none", "client_secret_basic", "private_key_jwt"],
  ttl: { ClientCredentials: 3, AccessToken: 3, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600 },
  pkce: { required: () => true },
  issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed("refresh_token"),
  rotateRefreshToken: true,
  findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
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
provider.use(async (ctx, next) => {
  await next();
  if (ctx.path !== "/token") return;
  for (const token of [ctx.body?.access_token, ctx.body?.refresh_token]) {
    if (token) appendFileSync(given, `${token}\n`);
  }
});
provider.on("client_credentials.issued", (token) => console.log(`token ${token.clientId} ${token.scope}`));
provider.on("access_token.issued", (token) => console.log(`token ${token.accountId} ${token.scope}`));
provider.on("refresh_token.consumed", (token) => console.log(`refreshed ${token.accountId} ${token.jti}`));
provider.on("revocation.success", () => console.log("revoked"));
provider.on("grant.revoked", () => console.log("revoked"));
provider.on("registration_create.success", (_ctx, made) => console.log(`client ${made.redirectUris}`));
provider.on("server_error", (_ctx, error) => console.log(`error ${error.stack}`));
for (const of of ["grant", "authorization", "registration_create", "revocation"]) {
  provider.on(`${of}.error`, (_ctx, error) =>
    console.log(`refused ${of} ${error.message} ${error.error_detail ?? error.error_description}`));
}
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
