// An authorization server (node-oidc-provider). Two clients get tokens of their own; people sign in
// to it under any name (its development pages), and clients register themselves.
// Two grants are added: of a person who has a token for the gateway, and the exchange of that one.
// provider.mjs PORT RESOURCE GATEWAY JWK FILE: prints a line for each token, and writes its value to FILE.
import { appendFileSync } from "node:fs";
import { createRemoteJWKSet, jwtVerify } from "jose";
import { Provider, errors } from "oidc-provider";

const [port, resource, gateway, jwk, given] = process.argv.slice(2);
const SIGN_IN = "urn:test:sign-in";
const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const client = {
  grant_types: ["client_credentials", SIGN_IN, EXCHANGE],
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
  ttl: { ClientCredentials: 3, AccessToken: (_ctx, token) => (token.aud === gateway ? 60 : 3), RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600 },
  pkce: { required: () => true },
  issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed("refresh_token"),
  rotateRefreshToken: true,
  extraTokenClaims: (_ctx, token) => token.extra,
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
        if (![resource, gateway].includes(asked)) throw new Error(`unknown resource ${asked}`);
        return {
          scope: "mcp:read mcp:write",
          audience: asked,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        };
      },
    },
  },
});
// Gives a client a token in the name of a person, for one of the two resources.
async function give(ctx, person, audience, extra) {
  const token = new provider.AccessToken({ accountId: person, client: ctx.oidc.client, gty: "test", extra });
  const info = { scope: "mcp:read mcp:write", audience, accessTokenFormat: "jwt", jwt: { sign: { alg: "RS256" } } };
  token.resourceServer = new provider.ResourceServer(audience, info);
  token.scope = ctx.oidc.params.scope ?? "";
  ctx.oidc.entity("AccessToken", token);
  const access_token = await token.save();
  ctx.body = { access_token, token_type: "Bearer", expires_in: token.expiration, scope: token.scope };
}
provider.registerGrantType(SIGN_IN, (ctx) => {
  const { person, tenant } = ctx.oidc.params;
  return give(ctx, person, gateway, { tenant });
}, ["person", "tenant", "scope"]);
const own = createRemoteJWKSet(new URL(`http://127.0.0.1:${port}/jwks`));
provider.registerGrantType(EXCHANGE, async (ctx) => {
  const { subject_token: subject, subject_token_type: type, resource: asked } = ctx.oidc.params;
  if (type !== "urn:ietf:params:oauth:token-type:access_token") throw new errors.InvalidRequest("another type");
  const verified = await jwtVerify(subject, own, { issuer: `http://127.0.0.1:${port}`, audience: gateway }).catch(() => null);
  if (!verified || asked !== resource) throw new errors.InvalidGrant("not for this client");
  // An administrator's policy.
  if (verified.payload.sub === "mallory") throw new errors.AccessDenied("by policy");
  console.log(`exchanged ${verified.payload.sub}`);
  await give(ctx, verified.payload.sub, resource, {});
  ctx.body.issued_token_type = "urn:ietf:params:oauth:token-type:access_token";
}, ["subject_token", "subject_token_type", "requested_token_type", "resource", "audience", "scope"]);
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
