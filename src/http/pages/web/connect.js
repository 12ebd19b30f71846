// A person of a tenant lets the gateway use a server in the tenant's name: asks, then leaves for the
// server's own sign-in.

import { html, render, useState } from './vendor/preact-htm.js';
import { api } from './api.js';
import { Mark, Problem, SignIn, Verb, useData, useSession } from './shell.js';

const server = decodeURIComponent(location.pathname.split('/').pop());
const asked = new URLSearchParams(location.search).get('tenant');

function Consent({ session, onSession }) {
  const path = `/v1/servers/${encodeURIComponent(server)}/connect`;
  const { data, error, again } = useData(path);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const signOut = async () => {
    await api('/session', { method: 'DELETE' }).catch(() => {});
    onSession({ signed_in: false });
  };
  const leave = async () => {
    setBusy(true);
    try {
      const { redirect } = await api(`/connect/${encodeURIComponent(server)}`, { method: 'POST', body: {} });
      if (/^https?:/.test(redirect)) location.assign(redirect);
    } catch (failure) {
      setProblem(failure.message);
      setBusy(false);
    }
  };
  const other = asked && asked !== session.tenant;
  return html`<main class="sign-in"><h1><${Mark} />Trunkline</h1>
    <section class="card"><h2>Connect “${server}”</h2>
      <p>You are signed in for the tenant <strong>${session.tenant}</strong>.
        <button class="quiet" onClick=${signOut}>sign out</button></p>
      ${other && html`<p class="problem" role="alert">This link is for the tenant “${asked}”. Sign out, and in with a key of that tenant.</p>`}
      <${Problem} error=${error} />
      ${data && !other && html`
        ${data.connected && html`<p>It is connected since ${new Date(data.connected_at).toLocaleString()}. Connecting again replaces that account.</p>`}
        <p>All callers of this tenant will use “${server}” with the account that you sign in to next, until the connection is ended.</p>
        <p><button class="primary" disabled=${busy} onClick=${leave}>Agree, and sign in to ${server}</button></p>
        ${data.connected && html`<p><${Verb} name="Disconnect" ask="End the connection?" act=${async () => {
          await api(`/connect/${encodeURIComponent(server)}`, { method: 'DELETE' });
          again();
        }} /></p>`}`}
      <${Problem} error=${problem} />
    </section></main>`;
}

function App() {
  const [session, setSession] = useSession();
  if (!session) return null;
  if (!session.signed_in) {
    return html`<${SignIn} session=${session} onSession=${setSession} what=${asked ? `A key of the tenant ${asked}` : 'Your key'}
      how=${`To connect “${server}”, show first that you are of the tenant: tl_…`} />`;
  }
  return html`<${Consent} session=${session} onSession=${setSession} />`;
}

render(html`<${App} />`, document.getElementById('page'));
