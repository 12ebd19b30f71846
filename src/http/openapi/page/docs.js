// Shows /openapi.json. Everything in it is shown as text: servers wrote parts of it.
"use strict";

const byId = (id) => document.getElementById(id);

// Makes an element. Children are elements or text.
function element(name, options, ...children) {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
}

const json = (value) => element("pre", {}, JSON.stringify(value, null, 2));

// Returns the schema that a reference leads to; others as they are.
function resolved(description, schema) {
  const pointer = schema && typeof schema.$ref === "string" ? schema.$ref : "";
  if (!pointer.startsWith("#/")) return schema;
  const name = (part) => decodeURIComponent(part).replace(/~1/g, "/").replace(/~0/g, "~");
  const step = (value, part) => (value === undefined ? value : value[name(part)]);
  return pointer.slice(2).split("/").reduce(step, description) ?? schema;
}

function bodies(description, title, content) {
  return Object.entries(content ?? {}).flatMap(([type, { schema }]) => [
    element("h4", {}, `${title} (${type})`),
    json(resolved(description, schema)),
  ]);
}

function operation(description, path, method, described) {
  const summary = element("summary", {},
    element("span", { className: "method" }, method),
    element("code", {}, path), String(described.summary ?? ""));
  const parameter = ({ name, in: place, description: text, required }) => element("tr", {},
    element("td", {}, element("code", {}, name)),
    element("td", {}, place + (required ? ", required" : "")),
    element("td", {}, String(text ?? "")));
  const whole = element("details", {}, summary);
  // Made when it is opened: there may be thousands.
  whole.addEventListener("toggle", () => {
    whole.append(
      element("p", { className: "text" }, String(described.description ?? "")),
      element("table", {}, ...(described.parameters ?? []).map(parameter)),
      ...bodies(description, "Body", described.requestBody?.content),
      ...Object.entries(described.responses).flatMap(([status, response]) =>
        bodies(description, `Answer ${status}: ${response.description}`, response.content)));
  }, { once: true });
  whole.dataset.find = `${method} ${path} ${described.summary}`.toLowerCase();
  return whole;
}

// Shows a section for each tag, in the document's order.
function show(description) {
  const sections = new Map();
  const section = (tag) => {
    if (!sections.has(tag)) sections.set(tag, element("section", {}, element("h2", {}, tag)));
    return sections.get(tag);
  };
  for (const tag of description.tags ?? []) section(tag.name);
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, described] of Object.entries(methods)) {
      const made = operation(description, path, method, described);
      section(described.tags?.[0] ?? "other").append(made);
    }
  }
  byId("operations").replaceChildren(...sections.values());
  find();
}

// Hides what does not fit the search, and sections of which nothing is left.
function find() {
  const wanted = byId("find").value.toLowerCase();
  for (const section of document.querySelectorAll("section")) {
    const operations = [...section.querySelectorAll("details")];
    for (const one of operations) one.hidden = !one.dataset.find.includes(wanted);
    section.hidden = operations.every((one) => one.hidden);
  }
}

async function load() {
  const key = byId("key").value.trim();
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  byId("problem").textContent = "";
  try {
    const response = await fetch("/openapi.json", { headers });
    const body = await response.json();
    if (!response.ok) throw new Error(body.detail);
    show(body);
  } catch (error) {
    byId("problem").textContent = String(error.message);
  }
}

byId("show").addEventListener("click", load);
byId("find").addEventListener("input", find);
load();
