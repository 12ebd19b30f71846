// The v1 line of the TypeScript SDK, which speaks the legacy era only.
//
//   node v1.mjs BASE_URL EXPECTED_JSON [legacy | sse]      sse: over the transport of 2024-11-05

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { era, run } from "./checks.mjs";
import { session } from "./session.mjs";

await run(async (url) => {
  const client = new Client({ name: "interop", version: "1" });
  const transport =
    era === "sse"
      ? new SSEClientTransport(new URL(url.replace("/mcp", "/sse")))
      : new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const callTool = (params, options) => client.callTool(params, undefined, options);
  return session(client, transport, transport.protocolVersion ?? transport._protocolVersion, callTool);
});
