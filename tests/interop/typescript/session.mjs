// What both lines of the TypeScript SDK do alike.

export function session(client, transport, version, callTool) {
  return {
    version,
    tools: async () => names((await client.listTools()).tools),
    call: async (name, args, options) => {
      const result = await callTool({ name, arguments: args }, options);
      return { text: contentText(result.content), isError: result.isError ?? false };
    },
    resources: async () => (await client.listResources()).resources.map((it) => it.uri),
    templates: async () => (await client.listResourceTemplates()).resourceTemplates.map((it) => it.uriTemplate),
    read: async (uri) => contentText((await client.readResource({ uri })).contents),
    prompts: async () => names((await client.listPrompts()).prompts),
    prompt: async (name, args) => {
      const { messages } = await client.getPrompt({ name, arguments: args });
      return contentText(messages.map((it) => it.content));
    },
    complete: async (ref, argument, context) =>
      (await client.complete({ ref, argument, ...(context && { context: { arguments: context } }) })).completion.values,
    close: async () => {
      await transport.terminateSession?.();
      await client.close();
    },
  };
}

export const names = (list) => list.map((it) => it.name);
export const contentText = (list) => list.map((it) => it.text ?? "").join("");
