/** What answers the clients: a map that writes behind, or a server. */
interface Side {
    /** What one thread of the load calls. */
    interface Session {
        /** The record's value, or null. */
        String get(long key);

        void put(long key, String value);

        void remove(long key);
    }

    /** A thread's own. */
    Session session();

    /** Returns when the database holds what was acknowledged, as far as it ever will. */
    void drain(Acknowledged acknowledged) throws Exception;

    /** Its own orderly end. */
    void shutdown();
}
