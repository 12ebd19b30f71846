// Toolsets with overrides, and questions of servers of both eras, as the official TypeScript SDKs see them.
//
//   node toolsets.mjs BASE_URL RELOAD v1|v2 legacy|modern     RELOAD WORD: a program that puts the word into the
//                                                              description of the tool at /mcp/t/live

import { execFileSync } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";

const [base, reload, line, era] = process.argv.slice(2);
/** The SHA-256 of `x`. */
const OF_X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";
const CAPABILITIES = { elicitation: { form: {} } };
const ANSWER = { action: "accept", content: { username: "Ada", email: "a@example.com" } };

async function connect(path, options = {}) {
  const url = new URL(base + path);
  const info = { name: "toolsets", version: "1" };
  if (line === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    const client = new Client(info, { capabilities: CAPABILITIES, ...options });
    client.setRequestHandler(ElicitRequestSchema, () => ANSWER);
    await client.connect(new StreamableHTTPClientTransport(url));
    return client;
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const versionNegotiation = { mode: era === "modern" ? "auto" : "legacy" };
  const client = new Client(info, { capabilities: CAPABILITIES, versionNegotiation, ...options });
  client.setRequestHandler("elicitation/create", () => ANSWER);
  await client.connect(new StreamableHTTPClientTransport(url));
  if (client.getProtocolEra() !== era) throw new Error(`speaks the ${client.getProtocolEra()} era`);
  return client;
}

let failed = 0;

async function check(path, name, work, options) {
  const late = sleep(30_000, undefined, { ref: false }).then(() => Promise.reject(new Error("nothing after 30 s")));
  try {
    await Promise.race([late, connect(path, options).then(async (client) => {
      await work(client);
      await client.close();
    })]);
    console.log(`ok ${line} ${era} ${path} ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${line} ${era} ${path} ${name}: ${String(error?.message ?? error).slice(0, 300)}`);
  }
}

const names = async (client) => (await client.listTools()).tools.map((it) => it.name);
const call = (client, name, args) => client.callTool({ name, arguments: args });
const text = (result) => result.content.map((it) => it.text ?? "").join("");

function same(actual, wanted) {
  if (JSON.stringify(actual) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(actual).slice(0, 200)} is not ${JSON.stringify(wanted).slice(0, 200)}`);
  }
}

function contains(words, part) {
  if (!words.includes(part)) throw new Error(`${JSON.stringify(words).slice(0, 200)} has no ${JSON.stringify(part)}`);
}

async function refused(promise, part) {
  const result = await promise.then((it) => it, (error) => ({ error }));
  if (!result.error) throw new Error(`no error, but ${JSON.stringify(result).slice(0, 200)}`);
  contains(String(result.error.message), part);
}

await check("/mcp/t/agent", "names, descriptions, arguments", async (client) => {
  const { tools } = await client.listTools();
  same(tools.map((it) => it.name), ["digest", "std__uuid", "std__echo"]);
  same(tools[0].description, "Computes a digest.");
  same(Object.keys(tools[0].inputSchema.properties), ["text"]);
  same(tools[0].inputSchema.properties.text.description, "Any text");
  same(tools[0].outputSchema, undefined);
});
await check("/mcp/t/agent", "a fixed argument and a pointer", async (client) => {
  same(text(await call(client, "digest", { text: "x" })), OF_X);
  await refused(call(client, "digest", { text: "x", algorithm: "sha512" }), "algorithm");
  await refused(call(client, "digest", { text: "x", Algorithm: "sha512" }), "Algorithm");
});
await check("/mcp/t/agent", "no tool by its name at the server", async (client) => {
  await refused(call(client, "std__hash", { text: "x", algorithm: "sha512" }), "no tool");
  await refused(call(client, "hash", { text: "x" }), "no tool");
});
await check("/mcp/t/agent", "a result that is cut says so", async (client) => {
  const result = await call(client, "std__echo", { text: "0123456789abcdef".repeat(100) });
  same(result.content[0].text.length, 1024);
  contains(result.content[1].text, "`max_bytes`");
  same(result._meta["trunkline/cut"].by, "max_bytes");
});
await check("/mcp/t/searched", "search and call", async (client) => {
  same(await names(client), ["search_tools", "call_tool"]);
  const found = JSON.parse(text(await call(client, "search_tools", { query: "hash digest", limit: 1 })));
  same(found.map((it) => it.name), ["std__hash"]);
  const called = await call(client, "call_tool", { name: "std__echo", arguments: { text: "hi" } });
  same(text(called), "hi");
});
const told = [];
await check("/mcp/t/live", "a reload is told of", async (client) => {
  const word = `word${process.pid}`;
  await client.listTools();
  await sleep(500); // the stream for changes is opened in the background, and nothing says when
  execFileSync(reload, [word]);
  for (;;) {
    if (told.some((tools) => tools?.[0]?.description?.includes(word))) return;
    await sleep(50);
  }
}, { listChanged: { tools: { onChanged: (_error, tools) => told.push(tools) } } });
for (const path of ["/mcp/modern", "/mcp/legacy"]) {
  await check(path, "a question", async (client) => {
    contains(text(await call(client, "test_elicitation", { message: "Who?" })), "Ada");
  });
}
process.exit(failed ? 1 : 0);
