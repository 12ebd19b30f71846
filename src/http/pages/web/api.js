// Requests to the gateway, and the live stream. Everything that the pages know comes through here.

const base = location.pathname.startsWith('/dashboard') ? '/dashboard' : '/me';

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// Sends a request for the page's session. The header is one that no page of another site can set.
export async function api(path, { method = 'GET', body, signal, headers = {} } = {}) {
  const response = await fetch(base + path, {
    method,
    headers: { ...headers, 'trunkline-page': '1' },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: 'no-store',
    redirect: 'error',
  });
  if (response.status === 204) return null;
  const text = await response.text();
  let json = null;
  try { json = JSON.parse(text); } catch { /* It is plain text. */ }
  if (!response.ok) {
    if (response.status === 401) signedOut();
    const message = json?.detail ?? text.trim();
    throw new ApiError(response.status, json?.code, message || `status ${response.status}`);
  }
  return json;
}

let signedOut = () => {};

// Has `listener` called when the session has ended.
export function onSignedOut(listener) {
  signedOut = listener;
}

// Reads events until the stream ends. `EventSource` cannot send the page's header.
async function readEvents(path, signal, onEvent) {
  const response = await fetch(base + path, {
    headers: { 'trunkline-page': '1' }, signal, cache: 'no-store', redirect: 'error',
  });
  if (response.status === 401) signedOut();
  if (!response.ok) throw new ApiError(response.status, null, `status ${response.status}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf('\n\n')) >= 0) {
      const event = /^event: (\w+)\ndata: (.*)$/s.exec(text.slice(0, end));
      text = text.slice(end + 2);
      if (event) onEvent(event[1], JSON.parse(event[2]));
    }
  }
}

// The trunk, kept up to date by the stream. `servers` maps ids to what the contract
// (docs/internals/live-page.md) says.
export class Live {
  constructor(path = '/admin/v1/live') {
    this.path = path;
    this.servers = new Map();
    this.replicas = new Map();
    this.numbers = null;
    this.state = 'connecting';
    this.listeners = new Set();
    this.clock = 0;
    this.stopped = null;
  }

  start() {
    this.stopped = new AbortController();
    this.run(this.stopped.signal);
    return () => this.stopped.abort();
  }

  async run(signal) {
    for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 8000)) {
      try {
        await readEvents(this.path, signal, (name, data) => {
          // A stream that was there is asked for again soon: it may have ended with the session.
          pause = 100;
          this.apply(name, data);
        });
      } catch (error) {
        if (signal.aborted || error.status === 401) return;
      }
      this.state = 'lost';
      this.replicas.clear();
      this.tell();
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  apply(name, data) {
    const from = data.replica ?? '';
    if (data.gone) {
      this.replicas.delete(from);
    } else {
      const replica = this.replicas.get(from) ?? { servers: new Map(), numbers: null, clock: 0 };
      // Ages are counted by the gateway's clock, not by this machine's.
      replica.clock = data.at - Date.now();
      if (data.numbers) replica.numbers = data.numbers;
      if (name === 'whole') replica.servers = new Map();
      for (const [id, change] of Object.entries(data.servers ?? {})) {
        if (change === null) replica.servers.delete(id);
        else replica.servers.set(id, merge(replica.servers.get(id), change));
      }
      this.replicas.set(from, replica);
    }
    this.join();
    this.state = 'live';
    this.tell();
  }

  // Puts the replicas together: with several, a server's name says where it runs.
  join() {
    const several = this.replicas.size > 1;
    this.servers = new Map();
    const sum = { longest_wait_ms: 0, waiting: 0, in_flight: 0, refused_own: 0, refused_other: 0 };
    for (const [from, { servers, numbers, clock }] of this.replicas) {
      this.clock = clock;
      for (const [id, server] of servers) this.servers.set(several ? `${id} @ ${from}` : id, server);
      for (const name of Object.keys(sum)) {
        const value = numbers?.[name] ?? 0;
        sum[name] = name === 'longest_wait_ms' ? Math.max(sum[name], value) : sum[name] + value;
      }
    }
    this.numbers = sum;
  }

  // What is known of a server, at the first replica that has it.
  server(id) {
    for (const { servers } of this.replicas.values()) if (servers.has(id)) return servers.get(id);
    return null;
  }

  now() {
    return Date.now() + this.clock;
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

// Makes a new object, so that whoever shows a server sees that it has changed.
function merge(before, change) {
  const cells = before?.cells ?? new Map();
  for (const [key, cell] of Object.entries(change.cells ?? {})) {
    if (cell === null) cells.delete(key);
    else cells.set(key, cell);
  }
  return {
    head: change.head ?? before?.head,
    instances: change.instances ?? before?.instances ?? [],
    line: change.line ?? before?.line ?? [],
    cells,
  };
}

// The parts of a call on a slot.
export function cellOf(key, cell) {
  const [tenant, state, begun, deadline, id, tool, attempt, labels] = cell;
  const [instance, place] = splitKey(key);
  return { key, instance, place, tenant, state, begun, deadline, id, tool, attempt, labels: labels ?? [] };
}

// The parts of a waiting call.
export function waiterOf(waiter) {
  const [tenant, since, deadline, id, tool, labels, early] = waiter;
  return { tenant, begun: since, deadline, id, tool, labels: labels ?? [], early: early === 1, waits: true };
}

function splitKey(key) {
  const at = key.lastIndexOf('/');
  return [key.slice(0, at), Number(key.slice(at + 1))];
}

// Writes a time span shortly: `12 ms`, `3.4 s`, `5 min`.
export function span(ms) {
  if (ms == null || Number.isNaN(ms)) return '–';
  const abs = Math.max(0, ms);
  if (abs < 1000) return `${Math.round(abs)} ms`;
  if (abs < 10_000) return `${(abs / 1000).toFixed(1)} s`;
  if (abs < 120_000) return `${Math.round(abs / 1000)} s`;
  if (abs < 7_200_000) return `${Math.round(abs / 60_000)} min`;
  if (abs < 172_800_000) return `${Math.round(abs / 3_600_000)} h`;
  return `${Math.round(abs / 86_400_000)} d`;
}

export function count(n) {
  if (n == null) return '–';
  return n < 10_000 ? String(n) : new Intl.NumberFormat('en', { notation: 'compact' }).format(n);
}

export function clockTime(at) {
  return new Date(at).toLocaleTimeString('en-GB');
}

// A tenant's colour: the same in every browser and on every page.
const hues = new Map();

function hueOf(tenant) {
  let hue = hues.get(tenant);
  if (hue === undefined) {
    let hash = 2166136261;
    for (const unit of tenant) hash = Math.imul(hash ^ unit.codePointAt(0), 16777619);
    hash = Math.imul(hash ^ (hash >>> 15), 2246822507) >>> 0;
    // 24 hues in three tones: neighbours on the wheel are told apart.
    hue = { angle: (hash % 24) * 15, tone: (hash >>> 8) % 3 };
    hues.set(tenant, hue);
  }
  return hue;
}

export function isDark() {
  return matchMedia('(prefers-color-scheme: dark)').matches;
}

export function colorOf(tenant, dark = isDark()) {
  const { angle, tone } = hueOf(tenant);
  return dark ? `hsl(${angle} ${[70, 45, 85][tone]}% ${[62, 72, 52][tone]}%)`
    : `hsl(${angle} ${[60, 38, 75][tone]}% ${[44, 56, 34][tone]}%)`;
}
