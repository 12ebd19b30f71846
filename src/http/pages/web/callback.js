// The browser is back from a server's sign-in. Hands over what it brings, once, in the session of
// the same tenant.

import { html, render, useEffect, useState } from './vendor/preact-htm.js';
import { api } from './api.js';
import { Mark, SignIn, useSession } from './shell.js';

const brought = new URLSearchParams(location.search);
const named = location.pathname.split('/')[3];
// Nobody needs the code in the history.
history.replaceState(null, '', location.pathname);

function parameters() {
  const body = { state: brought.get('state') ?? '' };
  for (const name of ['code', 'iss', 'error']) {
    if (brought.has(name)) body[name] = brought.get(name);
  }
  if (named) body.server = decodeURIComponent(named);
  return body;
}

function Ending({ session }) {
  const [done, setDone] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    api('/callback', { method: 'POST', body: parameters() }).then(setDone, (error) => setProblem(error.message));
  }, []);
  return html`<main class="sign-in"><h1><${Mark} />Trunkline</h1><section class="card">
    ${!done && !problem && html`<p role="status">One moment…</p>`}
    ${done && html`<h2 role="status">“${done.server}” is connected</h2>
      <p>The tenant <strong>${session.tenant}</strong> can use it now. You may close this page.</p>`}
    ${problem && html`<h2>Not connected</h2><p class="problem" role="alert">${problem}</p>`}
    <p><a href="/me">Your page</a></p></section></main>`;
}

function App() {
  const [session, setSession] = useSession();
  if (!session) return null;
  if (!session.signed_in) {
    return html`<${SignIn} session=${session} onSession=${setSession} what="Your key"
      how="Show a key of the tenant that you have begun this for: tl_…" />`;
  }
  return html`<${Ending} session=${session} />`;
}

render(html`<${App} />`, document.getElementById('page'));
