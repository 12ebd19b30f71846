// The command line of the MCP Inspector, one process for each request. Needs Node.js 22.
//
//   node inspector.mjs BASE_URL EXPECTED_JSON legacy|modern

import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { era, expected, run } from "./checks.mjs";
import { contentText, names } from "./session.mjs";

const inspector = import.meta.resolve("@modelcontextprotocol/inspector/package.json");
const launcher = fileURLToPath(new URL("clients/launcher/build/index.js", inspector));
// It keeps its catalog and its secrets at home.
const home = mkdtempSync(join(tmpdir(), "inspector-"));
const env = { ...process.env, HOME: home };
process.on("exit", () => rmSync(home, { recursive: true }));

await run(async (url) => {
  const ask = (method, ...options) => inspect(url, "--method", method, ...options);
  const { tools } = await ask("tools/list");
  return {
    oneShot: true,
    version: expected.versions[era], // it speaks the era it is told to, or fails
    tools: () => names(tools),
    call: async (name, args) => {
      const result = await ask("tools/call", "--tool-name", name, "--tool-args-json", JSON.stringify(args));
      return { text: contentText(result.content), isError: result.isError ?? false };
    },
    resources: async () => (await ask("resources/list")).resources.map((it) => it.uri),
    templates: async () => (await ask("resources/templates/list")).resourceTemplates.map((it) => it.uriTemplate),
    read: async (uri) => contentText((await ask("resources/read", "--uri", uri)).contents),
    prompts: async () => names((await ask("prompts/list")).prompts),
    prompt: async (name, args) => {
      const pairs = Object.entries(args).map(([key, value]) => `${key}=${value}`);
      const { messages } = await ask("prompts/get", "--prompt-name", name, "--prompt-args", ...pairs);
      return contentText(messages.map((it) => it.content));
    },
    close: () => {},
  };
});

/** A tool's own failure is a result too, although the process then fails. */
function inspect(url, ...options) {
  const how = ["--transport", "http", "--protocol-era", era, "--format", "json", "--quiet"];
  const args = [launcher, "--cli", url, ...how, ...options];
  return new Promise((resolve, reject) => {
    execFile(process.execPath, args, { env, maxBuffer: 1 << 24 }, (error, stdout, stderr) => {
      if (stdout) resolve(JSON.parse(stdout).result);
      else reject(new Error(stderr || error));
    });
  });
}
