// The v1 line of the TypeScript SDK, which speaks the legacy era only.
//
//   node v1.mjs BASE_URL EXPECTED_JSON

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { run } from "./checks.mjs";
import { session } from "./session.mjs";

await run(async (url) => {
  const client = new Client({ name: "interop", version: "1" });
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const callTool = (params, options) => client.callTool(params, undefined, options);
  return session(client, transport, transport.protocolVersion, callTool);
});
