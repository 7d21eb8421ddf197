// The ETA as shown: it falls freely, and rises only if it is clearly longer than the shown one.

const RISE = 1.15;

export class Wait {
  seconds = null;

  update({ status, eta_seconds: eta }) {
    if (eta === null || eta === undefined || (status !== "queued" && status !== "scheduled")) {
      this.seconds = null;
    } else if (this.seconds === null || eta <= this.seconds || eta > this.seconds * RISE) {
      this.seconds = eta;
    }
  }
}
