// The frame around both pages: signing in and out, tabs, and the note of the last error.

import { html, useEffect, useState } from './vendor/preact-htm.js';
import { api, onSignedOut } from './api.js';

// Who is signed in: `null` until that is known.
export function useSession() {
  const [session, setSession] = useState(null);
  const look = async () => {
    const link = /^#link=([\w-]+)$/.exec(location.hash)?.[1];
    if (link) {
      history.replaceState(null, '', location.pathname);
      try {
        return setSession(await api('/session', { method: 'POST', body: { link } }));
      } catch (error) {
        return setSession({ signed_in: false, problem: error.message });
      }
    }
    try {
      setSession(await api('/session'));
    } catch (error) {
      setSession({ signed_in: false, problem: error.message });
    }
  };
  useEffect(() => {
    onSignedOut(() => setSession((was) => (was?.signed_in ? { signed_in: false, problem: 'This session has ended.' } : was)));
    look();
  }, []);
  return [session, setSession];
}

export function SignIn({ session, onSession, what, how }) {
  const [problem, setProblem] = useState(session.problem ?? null);
  const [busy, setBusy] = useState(false);
  const send = async (body) => {
    setBusy(true);
    try {
      onSession(await api('/session', { method: 'POST', body }));
    } catch (error) {
      setProblem(error.message);
      setBusy(false);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    send({ key: new FormData(event.target).get('key') });
  };
  const plain = location.protocol === 'http:' && !['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);
  return html`<main class="sign-in">
    <h1><${Mark} />Trunkline</h1>
    <form onSubmit=${submit}>
      <label for="key">${what}</label>
      <input id="key" name="key" type="password" autocomplete="current-password" required autofocus
        spellcheck=${false} aria-describedby="how" />
      <button class="primary" disabled=${busy}>Sign in</button>
      <p id="how" class="hint">${how}</p>
    </form>
    ${session.anonymous && html`<button onClick=${() => send({ anonymous: true })}>Go on without a key</button>`}
    ${plain && html`<p class="problem">This page needs https: over plain http a browser keeps no session.</p>`}
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
  </main>`;
}

export function Mark() {
  return html`<svg class="mark" viewBox="0 0 16 16" aria-hidden="true"><rect x="1" y="1" width="6" height="6" rx="1.5" class="m1" />
    <rect x="9" y="1" width="6" height="6" rx="1.5" class="m2" /><rect x="1" y="9" width="6" height="6" rx="1.5" class="m3" />
    <rect x="9.6" y="9.6" width="4.8" height="4.8" rx="1.5" class="m4" /></svg>`;
}

// The tab that the address names after `#`.
export function useTab(tabs) {
  const read = () => tabs.find((tab) => tab.id === location.hash.slice(1).split('/')[0])?.id ?? tabs[0].id;
  const [tab, setTab] = useState(read);
  useEffect(() => {
    const changed = () => setTab(read());
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return tab;
}

export function Header({ tabs, tab, state, session, onSession }) {
  const signOut = async () => {
    await api('/session', { method: 'DELETE' }).catch(() => {});
    onSession({ signed_in: false });
  };
  return html`<header class="top">
    <a class="brand" href="#${tabs[0].id}"><${Mark} />Trunkline</a>
    <nav aria-label="views">${tabs.map(({ id, name }) => html`
      <a key=${id} href="#${id}" aria-current=${id === tab ? 'page' : undefined}>${name}</a>`)}</nav>
    ${state && html`<span class=${`stream ${state}`} role="status">${{ live: 'live', lost: 'connection lost', connecting: 'connecting' }[state]}</span>`}
    <span class="session">${session.tenant ?? (session.key ? `key ${session.key}` : 'by link')}</span>
    <button class="quiet" onClick=${signOut}>sign out</button>
  </header>`;
}

// Asks for something once, and again every so often; keeps the last answer while it asks.
export function useData(path, every = 0) {
  const [state, setState] = useState({ data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    const load = async () => {
      try {
        const data = await api(path, { signal: stop.signal });
        setState({ data, error: null, of: path });
      } catch (error) {
        if (!stop.signal.aborted) setState((was) => ({ ...was, error: error.message }));
      }
    };
    load();
    const timer = every ? setInterval(() => { if (!document.hidden) load(); }, every) : 0;
    return () => { stop.abort(); clearInterval(timer); };
  }, [path, every, turn]);
  return { ...state, again: () => setTurn((n) => n + 1) };
}

export function Problem({ error }) {
  return error ? html`<p class="problem" role="alert">${error}</p>` : null;
}

// A button for a change: asks once more before it acts, and shows what became of it.
export function Verb({ name, ask, act, kind = 'quiet' }) {
  const [state, setState] = useState('idle');
  const [note, setNote] = useState(null);
  const run = async () => {
    setState('busy');
    try {
      setNote(await act() ?? null);
      setState('idle');
    } catch (error) {
      setNote(error.message);
      setState('idle');
    }
  };
  if (state === 'sure') {
    return html`<span class="verb" role="group">${ask} <button class="danger" onClick=${run}>${name}</button>
      <button class="quiet" onClick=${() => setState('idle')}>no</button></span>`;
  }
  return html`<span class="verb"><button class=${kind} disabled=${state === 'busy'}
    onClick=${() => { setNote(null); setState('sure'); }}>${name}</button>
    ${note && html`<small role="status"> ${note}</small>`}</span>`;
}
