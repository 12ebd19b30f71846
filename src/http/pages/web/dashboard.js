// The operators' page.

import { html, render, useEffect, useReducer, useState } from './vendor/preact-htm.js';
import { Live } from './api.js';
import { Header, SignIn, useSession, useTab } from './shell.js';
import { Numbers, Trunk } from './trunk.js';
import { Calls } from './calls.js';
import { Detail } from './detail.js';
import { Servers } from './servers.js';
import { Shares } from './shares.js';
import { Tenants } from './tenants.js';
import { Time } from './time.js';

const TABS = [
  { id: 'trunk', name: 'Trunk' },
  { id: 'calls', name: 'Calls' },
  { id: 'servers', name: 'Servers' },
  { id: 'tenants', name: 'Tenants' },
  { id: 'shares', name: 'Shares' },
  { id: 'time', name: 'Time machine' },
];

function Page({ session, onSession }) {
  const [live] = useState(() => new Live());
  const [, redraw] = useReducer((n) => n + 1, 0);
  const [picked, setPicked] = useState(null);
  const tab = useTab(TABS);
  useEffect(() => {
    const stop = live.start();
    let waiting = false;
    // Several changes may come before the next picture.
    const forget = live.listen(() => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; redraw(); });
    });
    return () => { stop(); forget(); };
  }, []);
  return html`
    <${Header} tabs=${TABS} tab=${tab} state=${live.state} session=${session} onSession=${onSession} />
    <main>
      <h1 class="hidden">${TABS.find((it) => it.id === tab).name}</h1>
      <${Numbers} numbers=${live.numbers} />
      ${tab === 'trunk' && html`<${Trunk} live=${live} onPick=${setPicked} />`}
      ${tab === 'calls' && html`<${Calls} />`}
      ${tab === 'servers' && html`<${Servers} live=${live} />`}
      ${tab === 'tenants' && html`<${Tenants} />`}
      ${tab === 'shares' && html`<${Shares} live=${live} />`}
      ${tab === 'time' && html`<${Time} />`}
      ${picked && html`<${Detail} call=${picked} live=${live} onClose=${() => setPicked(null)} />`}
    </main>`;
}

function App() {
  const [session, setSession] = useSession();
  if (!session) return null;
  if (!session.signed_in) {
    return html`<${SignIn} session=${session} onSession=${setSession} what="Administrator's key"
      how="trunkline key create --admin makes one." />`;
  }
  return html`<${Page} session=${session} onSession=${setSession} />`;
}

render(html`<${App} />`, document.getElementById('page'));
