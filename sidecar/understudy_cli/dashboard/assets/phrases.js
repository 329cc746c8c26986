// Times and durations, as the command line writes them.

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole}s`;
  if (whole < 2 * 3600) return `${Math.floor(whole / 60)}m`;
  if (whole < 48 * 3600) {
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
    return minutes && hours < 10 ? `${hours}h${minutes}m` : `${hours}h`;
  }
  return `${Math.floor(whole / 86400)}d`;
}

// A pause, or a part of the time: 0.41 s, 8.23 s, 95.0 s, 12m.
export function precise(seconds) {
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  return seconds < 100 ? `${seconds.toFixed(1)} s` : duration(seconds);
}

export function age(at, now) {
  return at === null ? "-" : duration(now - at);
}

// In the time zone of the browser.
export function clock(at) {
  if (at === null) return "-";
  const date = new Date(at * 1000);
  return `${date.toLocaleDateString("sv-SE")} ${date.toLocaleTimeString("sv-SE")}`;
}

// A sign for each phase and state: the text beside it says the same.
const SIGNS = new Map([
  ["Running", ["●", "good"]],
  ["Ready", ["●", "good"]],
  ["Succeeded", ["✓", "idle"]],
  ["Completed", ["✓", "idle"]],
  ["Failed", ["✕", "bad"]],
  ["NotReady", ["✕", "bad"]],
  ["Recovering", ["↻", "busy"]],
  ["Restarting", ["↻", "busy"]],
  ["Pending", ["○", "busy"]],
  ["Starting", ["○", "busy"]],
  ["Terminating", ["○", "busy"]],
  ["Suspended", ["‖", "idle"]],
  ["Stopped", ["■", "idle"]],
  ["-", ["?", "idle"]],
]);
const OTHER = ["!", "bad"]; // such as ImagePullBackOff

export function signed(state) {
  return `${(SIGNS.get(state) ?? OTHER)[0]} ${state === "-" ? "not known" : state}`;
}

export function tone(state) {
  return (SIGNS.get(state) ?? OTHER)[1];
}
