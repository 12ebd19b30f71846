#!/usr/bin/env node
// Starts the program of the package for this platform, and ends as it ends.
'use strict';

const { spawn } = require('node:child_process');
const os = require('node:os');

const name = `trunkline-${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/trunkline`);
} catch {
  console.error(
    `trunkline: the package ${name} is not installed. There are packages for Linux on x64 and ` +
      'arm64; npm leaves them out with --omit=optional.',
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: 'inherit' });
// A terminal sends signals to both processes, everybody else to this one only. Two that come
// together count as one.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']) {
  process.on(signal, () => child.kill(signal));
}
// npx starts a shell that passes no signal on: it is gone when npx was told to end.
if (process.env.npm_command === 'exec') {
  const shell = process.ppid;
  setInterval(() => process.ppid === shell || child.kill('SIGTERM'), 500).unref();
}
child.on('error', (error) => {
  console.error(`trunkline: cannot start ${program}: ${error.message}`);
  process.exit(1);
});
child.on('exit', (code, signal) => {
  process.exit(code ?? 128 + os.constants.signals[signal]);
});
