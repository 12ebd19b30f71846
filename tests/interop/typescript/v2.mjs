// The v2 line of the TypeScript SDK. It is never told to be modern: it asks the server, as a client in the wild would.
//
//   node v2.mjs BASE_URL EXPECTED_JSON legacy|modern

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { era, run } from "./checks.mjs";
import { session } from "./session.mjs";

await run(async (url) => {
  const mode = era === "modern" ? "auto" : "legacy";
  const client = new Client({ name: "interop", version: "1" }, { versionNegotiation: { mode } });
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const callTool = (params, options) => client.callTool(params, options);
  return session(client, transport, client.getNegotiatedProtocolVersion(), callTool);
});
