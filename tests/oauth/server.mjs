// An MCP server of the official SDK that takes tokens of an authorization server alone.
// server.mjs PORT ISSUER SCOPE
import express from "express";
import { createRemoteJWKSet, jwtVerify } from "jose";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { requireBearerAuth } from "@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js";
import { InvalidTokenError } from "@modelcontextprotocol/sdk/server/auth/errors.js";

const [port, issuer, scope] = process.argv.slice(2);
const origin = `http://127.0.0.1:${port}`;
const resource = `${origin}/mcp`;
const metadata = "/.well-known/oauth-protected-resource/mcp";
const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));

const verifier = {
  async verifyAccessToken(token) {
    try {
      const { payload } = await jwtVerify(token, keys, { issuer, audience: resource });
      return {
        token,
        clientId: payload.client_id,
        scopes: (payload.scope ?? "").split(" "),
        expiresAt: payload.exp,
        extra: { person: payload.sub },
      };
    } catch (error) {
      throw new InvalidTokenError(error.message);
    }
  },
};

const app = express();
app.use(express.json());
app.get(metadata, (_request, response) => {
  response.json({ resource, authorization_servers: [issuer] });
});
const auth = requireBearerAuth({
  verifier,
  requiredScopes: [scope],
  resourceMetadataUrl: `${origin}${metadata}`,
});
app.all("/mcp", auth, async (request, response) => {
  const server = new McpServer({ name: "protected", version: "1" });
  server.registerTool("whoami", { description: "Names the client, or the person." }, ({ authInfo }) => ({
    content: [{ type: "text", text: `${authInfo.extra.person ?? authInfo.clientId}: ${authInfo.scopes.join(" ")}` }],
  }));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  response.on("close", () => transport.close());
  await server.connect(transport);
  await transport.handleRequest(request, response, request.body);
});
app.listen(Number(port), "127.0.0.1", () => console.log("ready"));
